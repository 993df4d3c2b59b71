"""Job specs made at random, from valid to hostile, and all that judges and carries them out."""
