"""Membership inference: was this record, or this client, part of the training?

    >>> seen = Observations(members=members, candidates=candidates, population=population)
    >>> roc = attacked(seen, ATTACKS["lira online"])
    >>> roc.at(0.01).tpr
    0.27...

Many models are trained by the same algorithm, each on a random half of the same candidates. Each is
attacked once, with the others as reference models. An attack sees final models alone, and of them
only the probability of the right label.
"""
