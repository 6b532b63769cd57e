"""The formulas of the paper in sixty digits and more: slow, obvious, independent of the library."""

import mpmath as mp

GUARD_DIGITS = 60


def _precise(logits):
    """Digits enough that terms of size α do not cancel into the guard digits."""
    return GUARD_DIGITS + int(max(abs(float(z)) for z in logits)) + 5


def alphas(logits):
    return [mp.exp(mp.mpf(float(z))) for z in logits]


def kl(alpha, beta):
    a0, b0 = mp.fsum(alpha), mp.fsum(beta)
    psi0 = mp.psi(0, a0)
    return (
        mp.loggamma(a0)
        - mp.loggamma(b0)
        + mp.fsum(
            mp.loggamma(b) - mp.loggamma(a) + (a - b) * (mp.psi(0, a) - psi0)
            for a, b in zip(alpha, beta, strict=True)
        )
    )


def loss(logits, counts, prior, kl_weight):
    """−Σ c (ψ(α) − ψ(α₀)) + λ KL(Dir(α) ‖ Dir(β)), equations 8 and 9 of the paper."""
    with mp.workdps(_precise(logits)):
        alpha, beta = alphas(logits), [mp.mpf(float(b)) for b in prior]
        psi0 = mp.psi(0, mp.fsum(alpha))
        votes = zip(counts, alpha, strict=True)
        data = mp.fsum(mp.mpf(float(c)) * (psi0 - mp.psi(0, a)) for c, a in votes)
        return data + mp.mpf(kl_weight) * kl(alpha, beta)


def gradient(logits, counts, prior, kl_weight):
    """∂loss/∂logits = α_k [ψ′(α₀) Σd − ψ′(α_k) d_k] with d = c + λβ − λα (equation 11, times α)."""
    with mp.workdps(_precise(logits)):
        alpha, weight = alphas(logits), mp.mpf(kl_weight)
        d = [
            mp.mpf(float(c)) + weight * mp.mpf(float(b)) - weight * a
            for c, b, a in zip(counts, prior, alpha, strict=True)
        ]
        common = mp.psi(1, mp.fsum(alpha)) * mp.fsum(d)
        return [a * (common - mp.psi(1, a) * dk) for a, dk in zip(alpha, d, strict=True)]


def dirichlet_kl(p_logits, q_logits):
    with mp.workdps(_precise([*p_logits, *q_logits])):
        return kl(alphas(p_logits), alphas(q_logits))


def dirichlet_kl_gradients(p_logits, q_logits):
    with mp.workdps(_precise([*p_logits, *q_logits])):
        alpha, gamma = alphas(p_logits), alphas(q_logits)
        a0, g0 = mp.fsum(alpha), mp.fsum(gamma)
        common = mp.psi(1, a0) * (g0 - a0)
        by_p = [a * (common - mp.psi(1, a) * (g - a)) for a, g in zip(alpha, gamma, strict=True)]
        shift = mp.psi(0, g0) - mp.psi(0, a0)
        by_q = [g * (mp.psi(0, g) - mp.psi(0, a) - shift) for a, g in zip(alpha, gamma, strict=True)]
        return by_p, by_q


def entropies(logits):
    """Entropy of the mean, expected entropy, mutual information, differential entropy."""
    with mp.workdps(_precise(logits)):
        alpha = alphas(logits)
        a0, classes = mp.fsum(alpha), len(alpha)
        total = -mp.fsum(a / a0 * mp.log(a / a0) for a in alpha)
        expected = mp.fsum(a / a0 * (mp.psi(0, 1 + a0) - mp.psi(0, 1 + a)) for a in alpha)
        log_normaliser = mp.fsum(mp.loggamma(a) for a in alpha) - mp.loggamma(a0)
        differential = (
            log_normaliser + (a0 - classes) * mp.psi(0, a0) - mp.fsum((a - 1) * mp.psi(0, a) for a in alpha)
        )
        return total, expected, total - expected, differential


def relative_error(value, truth):
    """|value − truth| / |truth|, for a number or, by largest component, for a vector."""
    if not isinstance(truth, list):
        value, truth = [value], [truth]
    size = max(abs(t) for t in truth)
    return float(max(abs(mp.mpf(float(v)) - t) for v, t in zip(value, truth, strict=True)) / size)
