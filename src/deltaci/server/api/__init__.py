"""`/api/v1`, for people and programs: translate and authorise, nothing else. The table of addresses is wire/api_routes.py."""
