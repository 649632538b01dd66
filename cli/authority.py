"""A cluster's own certificate authority: a folder with its key, what it has issued, and what is revoked.

Beside its folder ``ca`` there is one for each process, which is what that process is given: its certificate
and key, the authority's certificate, and the list of what is revoked. Needs the extra ``secure``.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mainspring.messages.tables import ConfigError
from mainspring.transport.certificate import ANY, BadCertificate, Named, parse_named

AUTHORITY = "ca"
"""The authority's own folder, beside those of processes."""
CERTIFICATE, KEY, TRUSTED, LIST = "cert.pem", "key.pem", "ca.pem", "crl.pem"
AUTHORITY_DAYS = 3_650
BACKDATED = datetime.timedelta(minutes=5)
"""Certificates are valid since then, for hosts whose clocks are behind."""
_HOST = re.compile(
    r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_PEM = serialization.Encoding.PEM


class Issued(NamedTuple):
    """A certificate that the authority has issued."""

    named: Named
    serial: int
    expires: datetime.datetime
    revoked: bool


class Authority:
    """The authority in a folder; everything raises `ConfigError` that says what is wrong."""

    def __init__(self, folder: Path) -> None:
        """Read it."""
        self._folder = folder
        try:
            key = serialization.load_pem_private_key((folder / AUTHORITY / KEY).read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate((folder / AUTHORITY / TRUSTED).read_bytes())
        except FileNotFoundError:
            raise ConfigError(
                f"{folder} is not the folder of an authority; `mainspring keys init` makes one"
            ) from None
        except OSError as error:
            raise ConfigError(f"{folder / AUTHORITY} can't be read: {error.strerror}") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{folder / AUTHORITY} holds no key and certificate: {error}") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey), "keys are made by `init`"
        self._key = key
        (name,) = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.cluster = str(name.value)
        """The cluster whose processes it issues certificates to."""

    @classmethod
    def create(cls, folder: Path, cluster: str) -> Authority:
        """Make an authority with a new key."""
        _check(Named(cluster, "controller", ANY))
        own = folder / AUTHORITY
        if (own / KEY).exists():
            raise ConfigError(f"{own} has a key already, which all certificates of the cluster depend on")
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cluster)])
        now = datetime.datetime.now(datetime.UTC)
        usage = _usage(key_cert_sign=True, crl_sign=True)
        certificate = (
            _builder(name, name, key.public_key(), now, datetime.timedelta(days=AUTHORITY_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(own / KEY, _private(key))
        _write(own / TRUSTED, certificate.public_bytes(_PEM), 0o644)
        made = cls(folder)
        made._write_list([])
        return made

    def issue(self, role: str, name: str, hosts: Sequence[str], days: int) -> Path:
        """Make a certificate with a key for a process; return the folder to give it.

        ``hosts``: names and numeric addresses by which clients reach it. A folder that exists gets a new key
        and certificate, which a process that runs reads within a second.
        """
        named = Named(self.cluster, role, name)
        _check(named)
        folder = self._folder / (role if name == ANY else name)
        if folder.name == AUTHORITY:
            raise ConfigError(f"{AUTHORITY!r} is the folder of the authority; give the process another name")
        key = ec.generate_private_key(ec.SECP256R1())
        now, life = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=days)
        if now + life > self._certificate.not_valid_after_utc:
            raise ConfigError(
                f"{days} days are longer than the authority's own certificate lasts, until "
                f"{self._certificate.not_valid_after_utc:%Y-%m-%d}"
            )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{role} {name}"[:64])])
        alternatives = [x509.UniformResourceIdentifier(str(named)), *map(_host, hosts)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), now, life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        with self._locked():
            issued = self._folder / AUTHORITY / "issued"
            issued.mkdir(mode=0o700, exist_ok=True)
            pem = certificate.public_bytes(_PEM)
            _write(issued / f"{certificate.serial_number:x}.pem", pem, 0o644)
            folder.mkdir(mode=0o700, exist_ok=True)
            for copied in (TRUSTED, LIST):
                _write(folder / copied, (self._folder / AUTHORITY / copied).read_bytes(), 0o644)
            _write(folder / KEY, _private(key))
            _write(folder / CERTIFICATE, pem, 0o644)
        return folder

    def revoke(self, name: str, *, keep_newest: bool = False) -> list[Issued]:
        """Revoke all certificates of a name, or all but the newest; return them.

        The list is written to the authority's folder and to those of processes beside it.
        """
        with self._locked():
            of_name = [each for each in self.issued() if each.named.name == name and not each.revoked]
            if keep_newest:
                of_name = of_name[:-1]
            if not of_name:
                known = ", ".join(sorted({each.named.name for each in self.issued() if not each.revoked}))
                raise ConfigError(
                    f"{name!r} has no such certificate to revoke; in use are those of: {known or 'nobody'}"
                )
            self._write_list([*self._revoked(), *(each.serial for each in of_name)])
        return of_name

    def issued(self) -> list[Issued]:
        """Return all that was issued, the oldest first."""
        revoked, found = set(self._revoked()), []
        for path in (self._folder / AUTHORITY / "issued").glob("*.pem"):
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (address,) = known.get_values_for_type(x509.UniformResourceIdentifier)
            serial = certificate.serial_number
            one = Issued(parse_named(address), serial, certificate.not_valid_after_utc, serial in revoked)
            found.append((path.stat().st_mtime_ns, one))
        return [one for _, one in sorted(found)]

    def _revoked(self) -> list[int]:
        listed = x509.load_pem_x509_crl((self._folder / AUTHORITY / LIST).read_bytes())
        return [each.serial_number for each in listed]

    def _write_list(self, serials: Sequence[int]) -> None:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(now - BACKDATED)
            .next_update(self._certificate.not_valid_after_utc)
        )
        for serial in serials:
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            builder = builder.add_revoked_certificate(one)
        pem = builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)
        for folder in [self._folder / AUTHORITY, *self._folder.iterdir()]:
            if (folder / TRUSTED).is_file():
                _write(folder / LIST, pem, 0o644)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other commands out meanwhile."""
        folder = os.open(self._folder / AUTHORITY, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _check(named: Named) -> None:
    try:
        parse_named(str(named))
    except BadCertificate as error:
        raise ConfigError(str(error)) from None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if _HOST.fullmatch(text) is None:
        raise ConfigError(f"{text!r} is neither a host's name nor a numeric address")
    return x509.DNSName(text)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, none)


def _write(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put a file in place of an existing one; a reader sees the one or the other."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    fresh.replace(path)
