"""Built-in environments, registered with Gymnasium as `hone/<Name>-v0`."""
