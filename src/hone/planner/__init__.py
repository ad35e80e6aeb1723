"""Will it fit, and how long does it take: memory and time of a run in closed form, before anything is loaded."""
