"""Jobs whose agents run on other machines; ledger, retries and the gate of model calls stay with the batch."""
