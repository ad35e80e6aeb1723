"""Games of several seats: adapters of PettingZoo and OpenSpiel, episodes per seat, self-play, players, teams."""
