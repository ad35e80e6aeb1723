"""On-policy control: policy gradients and their exploration bonuses."""
