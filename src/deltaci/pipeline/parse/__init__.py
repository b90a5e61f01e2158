"""Parsing of pipeline files: YAML with positions, the schema, cross-references, and problems with suggestions.

Pure: text in, a typed pipeline or problems out. Imports core, protocol and the rest of `deltaci.pipeline`. Start with
`reader.py`; `yaml.py` makes nodes, `shapes.py` describes the types of the model, `problems.py` collects the messages.
"""
