"""Control from replay: DQN and its family, deterministic and soft actor-critics, model-based control."""
