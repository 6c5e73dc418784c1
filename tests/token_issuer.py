"""What a cluster needs to take the tokens of an issuer that tests are."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

KEY, AUDIENCE = "k1", "tidelog"


def token_settings(issuer: rsa.RSAPrivateKey, folder: Path) -> dict[str, str]:
    """Settings of a broker whose PLAINTEXT listener takes tokens; the issuer's public key is put into the folder."""
    keys = folder / "keys.json"
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(issuer.public_key()))
    keys.write_text(json.dumps({"keys": [key | {"kid": KEY, "alg": "RS256"}]}))
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
