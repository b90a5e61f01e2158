"""`/api/v1`, for people and programs: translate and authorise, nothing else. wire/api_routes.py is the table of it."""
