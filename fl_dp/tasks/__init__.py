"""Tasks that come with the app: data sets, models, and training at a client.

They may know torch and scikit-learn; nothing of promises, of messages or of the app.
"""
