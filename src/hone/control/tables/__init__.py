"""Values in tables and tiles, learned step by step: traces, sweeps, learnt models, exploration, and their job."""
