"""A warehouse of robots: the floor and its rules, motion around reservations, skills, and who does what."""
