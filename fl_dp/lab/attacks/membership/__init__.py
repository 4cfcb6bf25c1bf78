"""Membership inference: was this record, or this client, part of the training?

    >>> observations = Observations(members=members, candidates=candidates, population=population)
    >>> roc = attacked(observations, ATTACKS["lira online"])
    >>> roc.at(0.01).tpr
    0.27...

Many models are trained by one algorithm, each on a random half of the same candidates. Each is
attacked with the others as references. An attack sees only the final models' probability of the
right label.
"""
