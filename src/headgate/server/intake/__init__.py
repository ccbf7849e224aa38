"""What comes in from elsewhere: webhooks."""
