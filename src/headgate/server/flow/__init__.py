"""What makes many small calls cheap: `batching` puts them into one commit, `polling` lets any number wait."""
