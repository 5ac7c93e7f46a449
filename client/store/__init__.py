"""What a client keeps on its disk: its ledger above all, written before anything is sent."""
