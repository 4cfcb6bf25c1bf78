"""Names of the accountants on the terminal."""

ACCOUNTANT_NAMES = {
    "pld": "epsilon by PLD",
    "rdp": "epsilon by Renyi DP",
    "gdp": "epsilon by Gaussian DP (exact)",
    "zcdp": "epsilon by zCDP",
    "gumbel": "epsilon by PLD of all noisy scores",
    "filter": "epsilon, guaranteed by the privacy filter",
    "naive": "epsilon by naive composition",
}
