"""Tasks that come with the app: data sets, models, and training at a client.

They may use torch, scikit-learn and the clients, but not the strategies or the app.
"""
