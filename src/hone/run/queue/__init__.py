"""A queue of training jobs of several teams: leases, weighted shares, and a ledger of the time that each used."""
