"""The actions that a step can name with `uses`: checkout, cache, artifacts, setup-python and setup-node.

`registry.py` lists them; `context.py` has the job as they see it and the parsing of their inputs. Start there.
"""
