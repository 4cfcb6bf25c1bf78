"""The app's own tasks: data sets, models, and training at a client.

They may import torch, scikit-learn and the clients, but not the strategies or the app.
"""
