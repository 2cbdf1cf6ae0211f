"""What may be asked for."""

from fastapi import APIRouter

from autosync.api.engine.service_limits import ServiceLimits
from autosync.api.http.dependencies import UploadsDep

router = APIRouter(prefix="/v1", tags=["service"])


@router.get("/limits")
def get_limits(uploads: UploadsDep) -> ServiceLimits:
    """What the operator of this service lets its clients ask for."""
    return uploads.limits
