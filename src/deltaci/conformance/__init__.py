"""The compliance kit: any runner, or any server, is driven from outside and told rule by rule what it does."""
