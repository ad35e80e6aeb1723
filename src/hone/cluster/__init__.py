"""Runs on several processes and machines, over Ray: placement, and the processes of replicas."""
