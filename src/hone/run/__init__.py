"""One run of any family, from its config to a finished folder: loop, job, store, report, callbacks.

Belongs here: what text, control and decisions do alike. Does not: any environment, network, reward or loss.
"""
