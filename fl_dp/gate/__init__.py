"""Gate: the owner's demands hold at the SuperNode, for any app that the server sends.

It stands between Flower's SuperNode and the server. Each message passes the owner's mods before an
app starts. Each answer is made here, and takes only a bounded update from the app's reply. Apps
need not know of it, and can't leave it out.
"""
