"""Workers: handlers, claims, leases, stopping, and what they do when the database hangs."""
