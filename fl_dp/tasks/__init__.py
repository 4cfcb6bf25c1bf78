"""Tasks that come with the app: data sets, models, and training at a client.

They may know torch, scikit-learn and the clients; nothing of the strategies or of the app.
"""
