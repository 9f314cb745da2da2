"""The instruments: each measures, generates or counts, with its ledger and its cost."""
