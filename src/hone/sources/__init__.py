"""Sources of episodes: live, logged, replayed, asynchronous, and wrappers around another source."""
