"""What tests of several areas have in common. No test is here."""
