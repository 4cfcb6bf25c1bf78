"""Gate: what a site's owner demands holds at the SuperNode, for any app that the server sends.

It stands between Flower's SuperNode and the server. Each message passes the owner's mods before an
app starts, and each answer is made here: of what the app replies, a bounded update alone is used.
Apps need not know of it, and can't leave it out.
"""
