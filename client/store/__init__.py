"""Files that a client keeps on its disk, above all its ledger, which is written before anything is sent."""
