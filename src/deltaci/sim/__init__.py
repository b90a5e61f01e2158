"""The whole deployment under virtual time, in one process, with everything that can go wrong. One seed, one history."""
