"""Reading pipeline files: YAML with positions, the schema, references between jobs, and problems with suggestions."""
