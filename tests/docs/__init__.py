"""The documentation: its examples run, its site is complete, its programs are typed."""
