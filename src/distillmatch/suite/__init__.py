"""The paper as data, the queue that runs it, and the ledger that keeps what came of it."""
