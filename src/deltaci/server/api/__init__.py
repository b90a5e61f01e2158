"""`/api/v1`, for people and programs: translate and authorise, nothing else. deltaci/api/routes.py is its table."""
