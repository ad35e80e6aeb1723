"""Values in tables and tiles, learned step by step: traces, sweeps, models learnt, exploration. Numpy only."""
