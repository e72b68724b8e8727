"""What each API's body means: functions that read a parsed document into a tally."""
