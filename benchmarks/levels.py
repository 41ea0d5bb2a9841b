"""Declared levels and bounds of the columns of public data sets, from their descriptions."""

__all__ = ["ADULT_LEVELS", "ADULT_NUMERIC", "KDD_COLUMNS", "KDD_LEVELS", "KDD_UNIT"]


def words(text: str) -> tuple[str, ...]:
    """Split at spaces.

    >>> words("a b ")
    ('a', 'b')
    """
    return tuple(text.split())


# Name -> (lower, upper): public bounds, generous where the description gives none.
ADULT_NUMERIC = {
    "age": (0.0, 100.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 5_000.0),
    "hours-per-week": (0.0, 100.0),
}

# All levels that the description declares; `Never-worked` has no complete case.
ADULT_LEVELS = {
    "workclass": words(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked "
    ),
    "education": words(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
        "1st-4th 10th Doctorate 5th-6th Preschool "
    ),
    "marital-status": words(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse "
    ),
    "occupation": words(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces "
    ),
    "relationship": words("Wife Own-child Husband Not-in-family Other-relative Unmarried "),
    "race": words("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black "),
    "sex": words("Female Male "),
    "native-country": words(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
        "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
        "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
        "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands "
    ),
}

KDD_COLUMNS = words(
    "duration protocol_type service flag src_bytes dst_bytes land wrong_fragment urgent hot num_failed_logins "
    "logged_in num_compromised root_shell su_attempted num_root num_file_creations num_shells "
    "num_access_files num_outbound_cmds is_host_login is_guest_login count srv_count serror_rate "
    "srv_serror_rate rerror_rate srv_rerror_rate same_srv_rate diff_srv_rate srv_diff_host_rate "
    "dst_host_count dst_host_srv_count dst_host_same_srv_rate dst_host_diff_srv_rate "
    "dst_host_same_src_port_rate dst_host_srv_diff_host_rate dst_host_serror_rate dst_host_srv_serror_rate "
    "dst_host_rerror_rate dst_host_srv_rerror_rate "
)

# Services of the training and the test file together.
KDD_LEVELS = {
    "protocol_type": words("icmp tcp udp "),
    "service": words(
        "IRC X11 Z39_50 auth bgp courier csnet_ns ctf daytime discard domain domain_u echo eco_i ecr_i efs "
        "exec finger ftp ftp_data gopher hostnames http http_443 icmp imap4 iso_tsap klogin kshell ldap link "
        "login mtp name netbios_dgm netbios_ns netbios_ssn netstat nnsp nntp ntp_u other pm_dump pop_2 pop_3 "
        "printer private red_i remote_job rje shell smtp sql_net ssh sunrpc supdup systat telnet tftp_u tim_i "
        "time urh_i urp_i uucp uucp_path vmnet whois "
    ),
    "flag": words("OTH REJ RSTO RSTOS0 RSTR S0 S1 S2 S3 SF SH "),
}

# Columns that are rates or flags.
KDD_UNIT = frozenset(
    words(
        "serror_rate srv_serror_rate rerror_rate srv_rerror_rate same_srv_rate diff_srv_rate "
        "srv_diff_host_rate dst_host_same_srv_rate dst_host_diff_srv_rate dst_host_same_src_port_rate "
        "dst_host_srv_diff_host_rate dst_host_serror_rate dst_host_srv_serror_rate dst_host_rerror_rate "
        "dst_host_srv_rerror_rate land logged_in root_shell is_host_login is_guest_login "
    )
)
