"""The environments that hone brings along, registered with Gymnasium as `hone/<Name>-v0`."""
