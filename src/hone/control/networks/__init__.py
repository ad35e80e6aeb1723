"""Networks for control: actor-critics, Q-networks, dynamics models, and their numpy mirrors for acting."""
