"""What a node's owner demands of every app: policy, ledger and times; the gate uses it, too."""
