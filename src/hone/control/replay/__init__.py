"""Replay buffers: experience is stored and sampled again. Numpy only."""
