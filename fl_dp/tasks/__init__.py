"""Tasks that come with the app: data sets, models, and training at a client."""
