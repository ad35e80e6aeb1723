"""Match: who plays whom, how strong everybody is, and how hard a level should be."""
